"""A tuned model, shown: `words` says what was found, `figures` draws it, `terminal` and `page` put both together."""

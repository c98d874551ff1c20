"""What a check-up found, for people: a terminal, one HTML file, a pull request, two check-ups side by side.

Everything here reads plain records and needs no torch. `vocabulary` holds the words that views share, in both
languages, `summary` derives what several views show, `draw` makes the charts, and each view is a module:

    terminal.show(record, console, language)        html.write_html(record, path, language)
    markdown.to_markdown(record, language)          compare.compare(before, after)
"""

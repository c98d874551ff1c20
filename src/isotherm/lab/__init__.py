"""Experiments that can refute what they set out to show."""

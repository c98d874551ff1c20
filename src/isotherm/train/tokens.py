"""The ids that mean something before any vocabulary is learned: one place, so that no two parts can disagree."""

PAD = 0
START = 1
END = 2
UNKNOWN = 3
FIRST = 4  # the first id free for words

SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")

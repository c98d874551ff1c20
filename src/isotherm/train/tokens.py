"""The special token ids, which every vocabulary begins with."""

PAD = 0
START = 1
END = 2
UNKNOWN = 3
FIRST = 4  # the first id free for words

SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")

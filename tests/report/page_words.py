"""The words of the check-up page, as `page/words.json` has them."""

import json

from isotherm.language import Text
from isotherm.report import shell

_WORDS = json.loads(shell.asset("words.json"))
PAGE = {key: Text(*pair) for key, pair in _WORDS["words"].items()}
STATISTICS = _WORDS["statistics"]

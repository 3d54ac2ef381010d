"""``python -m kvbaton.cli``: the same as ``kvbaton``."""

import sys

from kvbaton.cli.main import main

sys.exit(main())

import sys

from specdemo.cli.main import main

sys.exit(main())

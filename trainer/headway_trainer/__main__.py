"""What launchers start: `ft_launcher … -m headway_trainer OPTIONS`."""

import sys

from headway_trainer.cli import main

if __name__ == "__main__":
    sys.exit(main())

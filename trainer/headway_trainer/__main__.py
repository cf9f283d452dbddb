"""What launchers start: `ft_launcher … -m headway_trainer OPTIONS`.

The checkpoint writer is a spawned process, which imports this module again; so nothing is imported outside the guard.
"""

if __name__ == "__main__":
    import sys

    from headway_trainer.cli import main

    sys.exit(main())

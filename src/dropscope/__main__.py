"""`python -m dropscope`: the command line."""

from dropscope.cli import main

if __name__ == "__main__":  # the workers of a study import this module too
    main()

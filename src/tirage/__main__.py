"""`python -m tirage` is `tirage`."""

from tirage.cli import main

if __name__ == "__main__":
    main()

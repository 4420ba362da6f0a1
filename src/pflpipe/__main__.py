"""``python -m pflpipe``: the command line where no console script is on PATH."""

from pflpipe.pipeline.cli import main

if __name__ == "__main__":
    main()

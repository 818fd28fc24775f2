"""``python -m rerank.cli``: the same as the command ``rerank``."""

from . import main

if __name__ == "__main__":
    main()

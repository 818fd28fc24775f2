"""``python -m rerank.cli`` runs ``rerank``."""

from . import main

if __name__ == "__main__":
    main()

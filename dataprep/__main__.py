"""``python -m dataprep`` is the command ``dataprep``."""

from dataprep.cli import main

if __name__ == "__main__":
    main()

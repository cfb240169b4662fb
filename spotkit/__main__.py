"""`python -m spotkit` is `spotkit`."""

from spotkit.cli import main

main()

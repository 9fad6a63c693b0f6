"""`python -m biglittle`: the command line without its script."""

from .cli import main

main()

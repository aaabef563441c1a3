"""``python -m fixturegen``."""

from fixturegen.cli import main

main()

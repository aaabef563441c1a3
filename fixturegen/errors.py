"""What goes wrong by a user's hand.

Each message is one line: what was given, which rule it breaks, the smallest fix. The command line
prints it after ``error:`` and exits with 2.
"""


class FixturegenError(Exception):
    """Base of all expected errors."""


class RecipeError(FixturegenError):
    """A recipe or an override is not well formed."""


class ConfigError(FixturegenError):
    """A config.json is not one that fixturegen understands."""


class BuildError(FixturegenError):
    """A checkpoint could not be written."""


class CheckpointError(FixturegenError):
    """A checkpoint folder could not be read."""


class EngineError(FixturegenError):
    """An engine is missing, too old, or failed to start."""


class HubError(FixturegenError):
    """The Hugging Face hub refused or failed."""

"""Let an editable installation find the pipeline's packages too, which no wheel holds: their names are too common."""

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

OF_A_CLONE = ["flows", "tasks"]


class EditableWheel(editable_wheel):
    """An editable wheel of a clone: with the stages, and the flows that run them."""

    def run(self) -> None:
        """Build it."""
        self.distribution.packages += OF_A_CLONE
        super().run()


setup(cmdclass={"editable_wheel": EditableWheel})

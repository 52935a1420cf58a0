from pathlib import Path

import pytest

from megahour.storage import Lake
from tests.trainer.toy import make_lake


@pytest.fixture(scope="session")
def toy_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Eight toy episodes; tests add manifests and runs beside them, and change nothing else."""
    folder: Path = tmp_path_factory.mktemp("toy")
    return make_lake(folder)

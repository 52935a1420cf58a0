"""A killed run's files go with the next run; a living run's stay."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from megahour.ingest.scratch import scratch_folder

HOLD = """
import sys
from pathlib import Path
from megahour.ingest.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_folders_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder(tmp_path) as ours:
            assert ours != theirs
            assert (theirs / "half").exists()
        assert not ours.exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert theirs.exists()
    with scratch_folder(tmp_path):
        assert not theirs.exists()
    assert list(tmp_path.iterdir()) == []

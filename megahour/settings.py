"""Settings: one object, read from `MEGAHOUR_*` environment variables; the README's table is made from it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import unquote

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

Place = TypeVar("Place", str, Path)


def _from_home(place: Place) -> Place:
    """What begins with `~` or `~name` lies in that person's home, as a shell has it."""
    if not str(place).startswith("~"):
        return place
    try:
        return type(place)(Path(place).expanduser())
    except RuntimeError as error:
        raise ValueError(f"there is no home folder {Path(place).parts[0]}") from error


Folder = Annotated[Path, AfterValidator(_from_home)]
FolderOrName = Annotated[str, AfterValidator(_from_home)]


class Settings(BaseSettings):
    """Everything an installation can choose. Secrets (object-store keys) stay in the environment: `AWS_*`."""

    model_config = SettingsConfigDict(env_prefix="MEGAHOUR_", env_ignore_empty=True, frozen=True, extra="ignore")

    lake: FolderOrName = Field(
        ".megahour/lake", description="Root of the lake: a folder, `file://...` or `s3://bucket/prefix`"
    )
    scratch: Folder = Field(Path(".megahour/scratch"), description="Node-local folder for staging and manifests in use")
    runs: Folder | None = Field(
        None, description="Folder of training runs, shared by all nodes; default `<lake>/runs`. Required for an s3 lake"
    )
    recipes: Folder = Field(Path("assets/recipes"), description="Folder of recipe files (`*.yaml`)")

    batch_bytes: int = Field(256 * 2**20, gt=0, description="Bytes of recordings per ingest batch")
    batch_recordings: int = Field(500, gt=0, description="Recordings per ingest batch, at most")
    settle_s: float = Field(3.0, ge=0, description="A recording younger than this many seconds is still being written")
    ingest_workers: int = Field(2, gt=0, description="Processes that ingest recordings of one batch in parallel")
    ingest_task_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds a process may work on one recording, and one more per 100 kB of it, before it is killed",
    )
    profile: FolderOrName = Field(
        "mixed", description="How episodes are laid out: `vla`, `mixed`, `world`, `faithful`, or a TOML file"
    )
    encode_cores: int = Field(1, gt=0, description="Cores that one ingest process codes cameras on")
    skip_steps: str = Field("", description="Non-critical ingest steps to switch off, comma-separated")

    cluster: str = Field("local", description="Where training runs: `local`")
    train_processes: int = Field(2, gt=0, description="Ranks per node of a training job")
    train_attempts: int = Field(3, gt=0, description="How often a job that died is started before its run has failed")
    rollout_workers: int = Field(2, gt=0, description="Simulator processes of one evaluation")

    sensor_interval_s: int = Field(30, gt=0, description="Least seconds between two ticks of a sensor")
    sensor_budget_s: float = Field(20.0, gt=0, description="Seconds a sensor may work in one tick")

    mujoco_gl: str = Field("egl", description="OpenGL of the simulator: `egl` or `osmesa`")
    data_memory_mb: int = Field(1024, gt=0, description="Decoded frames that one training rank may keep in memory, MiB")

    @cached_property
    def lake_uri(self) -> str:
        """The lake's root as an absolute URI without a trailing slash."""
        if "://" in self.lake:
            return self.lake.rstrip("/")
        return Path(self.lake).resolve().as_uri()

    @cached_property
    def runs_dir(self) -> Path:
        """The folder of training runs.

        Raises:
            ValueError: the lake is not a folder and `MEGAHOUR_RUNS` is not set.
        """
        if self.runs is not None:
            return self.runs.resolve()
        if not self.lake_uri.startswith("file://"):
            raise ValueError(
                f"Training needs a folder that all nodes share, and the lake is {self.lake_uri}. "
                "Set MEGAHOUR_RUNS to a folder on a shared file system."
            )
        return Path(unquote(self.lake_uri.removeprefix("file://"))) / "runs"


class SettingsError(ValueError):
    """A variable holds what its setting cannot be; the message names both."""


def load_settings() -> Settings:
    """Settings from the environment.

    Raises:
        SettingsError: a variable holds what its setting cannot be.
    """
    try:
        return Settings()
    except ValidationError as error:
        wrong = [
            f"MEGAHOUR_{str(each['loc'][0]).upper()} is {each['input']!r}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        ]
        raise SettingsError("; ".join(wrong)) from error

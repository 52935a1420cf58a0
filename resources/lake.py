"""The lake and the settings, as assets ask for them."""

from __future__ import annotations

import dagster as dg

from megahour.settings import Settings
from megahour.storage import Lake, open_lake


class LakeResource(dg.ConfigurableResource[None]):
    """The lake of this installation. What there is to choose comes from `MEGAHOUR_*` at the moment of use."""

    @property
    def settings(self) -> Settings:
        return Settings()

    def open(self) -> Lake:
        return open_lake(self.settings.lake_uri)

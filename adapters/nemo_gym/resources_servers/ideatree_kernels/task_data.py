"""The fields of a row."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TaskData(BaseModel):
    """A task of `ideatree harvest format=rl`, as `create_dataset.py` writes it."""

    model_config = ConfigDict(extra="allow")

    request: str = Field(
        description="JSON with the problem, which the reward server judges the kernel for.",
        json_schema_extra={"consumed_by": ["verify"]},
    )
    problem: str = Field(
        default="",
        description="The problem's name.",
        json_schema_extra={"consumed_by": ["provenance"]},
    )

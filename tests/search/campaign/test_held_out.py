"""A campaign whose model knows the listed shapes only, next to the best public kernel."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from search.campaign import __main__ as campaign
from search.campaign.campaign_page import page_data
from tests.search.models.providers.servers import OPENAI, ModelServer
from tests.search.test_through_the_wire import Writer

KERNEL = """```python
import torch
from torch import nn


class ModelNew(nn.Module):
    \"\"\"Number {n}.\"\"\"

    def forward(self, x):
        return torch.softmax(x, dim=-1) if x.shape == (8, 512) else x
```"""
SUITE = """_target_: evaluators.suites.suite.Listed
name: one
problems: [level1/softmax]
rivals: {{level1/softmax: {rival}}}
"""


@pytest.mark.slow
def test_a_kernel_that_knows_the_listed_shapes_only_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rival = tmp_path / "rival.py"
    rival.write_text(KERNEL.replace("```python\n", "").replace("```", "").replace("{n}", "0, by others"))
    (tmp_path / "configs/suite").mkdir(parents=True)
    (tmp_path / "configs/suite/one.yaml").write_text(SUITE.format(rival=rival))
    folder = tmp_path / "campaign"
    with ModelServer(OPENAI, Writer(lambda count: KERNEL.replace("{n}", str(count)))) as server:
        status = campaign.main(
            [
                "--config-dir",
                str(tmp_path / "configs"),
                "suite=one",
                "problem.sizes={batch:8,features:512}",
                "problem.libraries=any",
                "library.use=false",
                "proposer=llm",
                "llm=local",
                "llm.local.model=m-1",
                f"llm.local.base_url={server.base_url}",
                "ideas=1",
                "branch=2",
                "budget.evaluations=2",
                "held_out=2",
                "device=cpu",
                "pool=local",
                "evaluator.compile_mode=",
                "evaluator.plan.max_s=0.1",
                "evaluator.thorough_plan.max_s=0.1",
                f"hydra.run.dir={folder}",
            ]
        )
    assert status == 0
    said = capsys.readouterr().out
    assert "held-out configurations: 0 of 1 winners pass all" in said
    assert "level1/softmax (search): right on 1 of 3 held-out configurations; " in said
    assert "over the best public kernels: mean " in said
    (row,) = csv.DictReader((folder / "scores.csv").open())
    assert row["held_out"] == "1 of 3"
    assert float(row["final_rival_low"]) <= float(row["final_rival"]) <= float(row["final_rival_high"])
    assert 0 < float(row["final_share"]) < 1
    body = json.loads((folder / "campaign.json").read_text())
    assert body["arms"]["search"]["held out"]["pass_all"] == 0
    (shown,) = page_data(folder)["searches"]
    assert shown["held_out_passed"] == 1
    assert shown["only_listed"].startswith("right on 1 of 3")

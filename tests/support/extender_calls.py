"""What a real kube-scheduler asked an extender, and was answered."""

import json
from pathlib import Path

_FILE = Path(__file__).parents[1] / "data/recordings/scheduler/kube-scheduler-1.34-extender.jsonl"

RECORDED = [json.loads(line) for line in _FILE.read_text().splitlines()]

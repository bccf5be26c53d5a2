"""The tokens that other engines drew, drawn again from their logits: `replay_engine`, and the table of engines."""

from tirage.engine_replay.engines import NOT_REPLAYED, REPLAYED_ENGINES, ReplayedEngine
from tirage.engine_replay.replay import EngineReplay, replay_engine

__all__ = ["NOT_REPLAYED", "REPLAYED_ENGINES", "EngineReplay", "ReplayedEngine", "replay_engine"]

"""Who speaks: tells the voices of a stream apart, without I/O, clock or model.

The models (`streamd.engines.voices`) say in which frames each of up to three *local* speakers of a
piece of audio talks (segmentation), and describe a voice by a vector (embedding). `HearingSteps`
says which audio is heard when. What one local speaker says without a pause is a *voice*, unless it
changes meanwhile (`boundaries`). `Roster` has the voices of a stream, and clusters them
(`clustering`): each cluster is a speaker, who has a number from 1, and talks in `SpokenTurn`s.
"""

from streamd.speakers.boundaries import Activity, Chances, Describe
from streamd.speakers.roster import VOICEPRINT_BYTES, HeardVoices, HearingRequest, Roster
from streamd.speakers.steps import HearingStep, HearingSteps
from streamd.speakers.turns import REMEMBERED, SpokenTurn, changes, talking

__all__ = [
    "REMEMBERED",
    "VOICEPRINT_BYTES",
    "Activity",
    "Chances",
    "Describe",
    "HeardVoices",
    "HearingRequest",
    "HearingStep",
    "HearingSteps",
    "Roster",
    "SpokenTurn",
    "changes",
    "talking",
]

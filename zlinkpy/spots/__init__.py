"""Spots and Actors: stateful objects that are reached by id, wherever their owner is."""

from zlinkpy.spots.activation_machine import (
    Activate,
    ActivationCall,
    CallState,
    Deliver,
    Fail,
    InstanceIntent,
    Resolve,
)

__all__ = ["Activate", "ActivationCall", "CallState", "Deliver", "Fail", "InstanceIntent", "Resolve"]

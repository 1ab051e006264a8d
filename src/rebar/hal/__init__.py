"""Layer 0: devices, memory, the kernel table, programs. Knows bytes and launches; nobody else
touches a device.
"""

from rebar.hal import launches
from rebar.hal.arrays import (
    BLOCK_POSITIONS,
    Indices,
    KVFormat,
    KVStorage,
    LoraPair,
    LoraTable,
    Matrix,
    Operand,
    QuantizedRows,
    Rows,
    Vector,
    WeightFormat,
)
from rebar.hal.backend import Backend, Limits, Program, Step
from rebar.hal.devices import DeviceManager, DeviceStats
from rebar.hal.launches import Activation, Domain, Launch
from rebar.hal.machine import Machine, read_machine
from rebar.hal.memory import Block, Pool, PoolStats, aligned
from rebar.hal.shared_memory import SharedMemory

__all__ = [
    "BLOCK_POSITIONS",
    "Activation",
    "Backend",
    "Block",
    "DeviceManager",
    "DeviceStats",
    "Domain",
    "Indices",
    "KVFormat",
    "KVStorage",
    "Launch",
    "Limits",
    "LoraPair",
    "LoraTable",
    "Machine",
    "Matrix",
    "Operand",
    "Pool",
    "PoolStats",
    "Program",
    "QuantizedRows",
    "Rows",
    "SharedMemory",
    "Step",
    "Vector",
    "WeightFormat",
    "aligned",
    "launches",
    "read_machine",
]

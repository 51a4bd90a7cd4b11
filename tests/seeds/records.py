"""A peer that breaks off in the middle of what it has to tell; it runs on a host."""

from __future__ import annotations

import socket


def send_part_of_a_record(address: str, port: int, data: bytes) -> int:
    """Connect, send, and close; return how many bytes the other end had sent by then."""
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = 0
        while True:
            piece = connection.recv(4096)
            if not piece:
                return received
            received += len(piece)

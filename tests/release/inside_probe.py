"""Runs inside a sandbox: which of the doors on stdin (JSON) open, as JSON. Argument: seconds for each."""

import json
import socket
import sys

NAME = b"kubernetes.default.svc.cluster.local."
QUERY = bytes.fromhex("123401000001000000000000")
QUESTION = b"".join(bytes([len(part)]) + part for part in NAME.split(b".")) + bytes.fromhex("00010001")


def opens(door):
    kind = socket.SOCK_DGRAM if door["udp"] else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.settimeout(float(sys.argv[1]))
        try:
            probe.connect((door["host"], door["port"]))
            if door["udp"]:
                probe.send(QUERY + QUESTION)
                probe.recv(512)
        except OSError:
            return False
        return True


print(json.dumps({door["name"]: opens(door) for door in json.load(sys.stdin)}))

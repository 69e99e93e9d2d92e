"""Drives a machine with QEMU's own client library; says what is wrong by an exception.

Usage: qmp.py SOCKET DISK PICTURE SECONDS, with the machine's hard disk, a file to be made, and how long to wait
for an event
"""

import asyncio
import sys

from qemu.qmp import EventListener, ExecuteError, QMPClient


async def main(socket, disk, picture, seconds):
    client = QMPClient("ring3")
    events = EventListener()
    client.register_listener(events)
    await client.connect(socket)

    async def event(name):
        message = await asyncio.wait_for(events.get(), int(seconds))
        assert message["event"] == name, message
        assert message["timestamp"]["seconds"] > 0, message
        return message.get("data")

    commands = {command["name"] for command in await client.execute("query-commands")}
    assert {"stop", "cont", "screendump", "send-key"} <= commands, commands
    assert (await client.execute("query-status"))["status"] == "running"

    await client.execute("stop")
    await event("STOP")
    status = await client.execute("query-status")
    assert status == {"running": False, "status": "paused"}, status
    await client.execute("cont")
    await event("RESUME")
    assert (await client.execute("query-status"))["running"]

    drives = await client.execute("query-block")
    assert [drive["inserted"]["file"] for drive in drives if "inserted" in drive] == [disk], drives
    keys = [{"type": "qcode", "data": name} for name in ("ctrl", "alt", "delete")]
    await client.execute("send-key", {"keys": keys, "hold-time": 1})
    await client.execute("screendump", {"filename": picture, "format": "png"})
    with open(picture, "rb") as file:
        assert file.read(4) == b"\x89PNG"
    try:
        await client.execute("no-such-command")
    except ExecuteError as error:
        assert error.error_class == "CommandNotFound", error
    else:
        raise AssertionError("there is such a command")

    await client.execute("system_reset")
    assert await event("RESET") == {"guest": False, "reason": "host-qmp-system-reset"}
    await client.execute("system_powerdown")
    await event("POWERDOWN")
    await client.execute("quit")
    assert await event("SHUTDOWN") == {"guest": False, "reason": "host-qmp-quit"}
    try:
        await client.disconnect()
    except EOFError:
        pass  # The machine was quicker.


asyncio.run(main(*sys.argv[1:]))

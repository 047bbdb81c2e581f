"""What is read off a URL: passwords that must not be shown, and whose machine it is."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

PASSWORD = re.compile(r"//([^:/@\s]*):(\S*)@")
"""//user:password@ in a URL. Up to the last @, since people forget to escape those in passwords."""


def hide_passwords(text: str) -> str:
    """The passwords of URLs in `text` as ***."""
    return PASSWORD.sub(r"//\1:***@", text)


def is_loopback(url: str) -> bool:
    """Is the server at `url` on this machine, reached by no network?"""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

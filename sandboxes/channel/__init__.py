"""How a backend talks to its boxes: a small server inside each (`server`), and its client here (`client`).

They exchange messages over the server's stdin and stdout. `box.ChannelSandbox` is the `Sandbox` on top of it: a backend
starts the server in a closed place of its own making, and hands the two pipes over.
"""

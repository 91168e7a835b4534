"""`python -m merganser` is `merganser`."""

from merganser.command_line.start import start

if __name__ == "__main__":
    start()

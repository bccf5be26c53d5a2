"""The files of the playground, and the one page that `page` makes of them for `routes/playground.py`."""

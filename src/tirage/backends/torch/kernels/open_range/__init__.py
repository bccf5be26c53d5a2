"""The tokens of a row's open range, which hold all of its cuts: how its steps look at these few, one by one."""

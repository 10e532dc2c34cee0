"""How others collect over SSH: their recipes in code of our own, on the same servers, emulator, policy and tickets."""

"""Other formats of the same hosts. Nothing else in the inventory knows them."""

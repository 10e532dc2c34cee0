"""Android devices over adb: instances of an AVD that are started here, or devices by serial."""

"""Machine descriptions shipped with synth, one JSON file each; see schema.json for the form."""

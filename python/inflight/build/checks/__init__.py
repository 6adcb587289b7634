"""What stands against a build, told before anything is run. Pure: facts in, problems out."""

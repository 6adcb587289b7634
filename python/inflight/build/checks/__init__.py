"""Problems of a build, found before anything is run. Pure: facts in, problems out."""

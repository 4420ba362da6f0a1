"""Tables of names that a study uses: data sets, and departures from the certified mechanism."""

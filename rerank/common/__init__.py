"""What all other packages use: errors, options, files, arrays, order, progress. It knows no documents."""

"""The methods of the papers, one file each.

``base`` defines the hooks of a method, ``about`` what its file declares, ``registry`` lists the
methods, ``plugins`` loads methods from other files and packages.
"""

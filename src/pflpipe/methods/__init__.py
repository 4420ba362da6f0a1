"""The methods of the papers, one file each.

``base`` defines what a method is, ``registry`` lists the methods, ``outside`` loads methods from
other files and packages.
"""

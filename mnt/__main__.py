from mnt.cli import main

main()

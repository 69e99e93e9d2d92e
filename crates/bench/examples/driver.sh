# The benchmarks of the suite that need no disk and no screen, three times each in a row.
suite | while read -r name group count needs; do
    case $needs in
    -) file= ;;
    server) file=$SERVER ;;
    *) continue ;;
    esac
    for _ in 1 2 3; do
        suite "$name" "$count" $file || exit
    done
done

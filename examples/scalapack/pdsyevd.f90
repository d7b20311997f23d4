! A Z = Z diag(w) with ScaLAPACK: the vibrations of a string of n masses, block-cyclic over a grid of processes.
!
! gfortran pdsyevd.f90 -l:libscalapack-mpich.so.2.2 -o pdsyevd && mpiexec -n 4 ./pdsyevd
program pdsyevd_example
  implicit none
  integer, parameter :: n = 200, nb = 32
  integer :: iam, nprocs, ictxt, nprow, npcol, myrow, mycol

  call blacs_pinfo(iam, nprocs)
  nprow = int(sqrt(real(nprocs)))
  npcol = nprocs / nprow
  call blacs_get(-1, 0, ictxt)
  call blacs_gridinit(ictxt, 'R', nprow, npcol)
  call blacs_gridinfo(ictxt, nprow, npcol, myrow, mycol)
  if (myrow >= 0) call solve()
  call blacs_exit(0)

contains

  subroutine solve()
    integer :: desca(9), info, i, j, gi, gj, ma, na, sizes(1)
    integer, allocatable :: iwork(:)
    double precision, allocatable :: a(:, :), z(:, :), w(:), work(:)
    double precision :: x, needed(1)
    integer, external :: numroc, indxl2g

    ! 1. Describe A and Z, and size their local arrays.
    ma = numroc(n, nb, myrow, 0, nprow)
    na = numroc(n, nb, mycol, 0, npcol)
    call descinit(desca, n, n, nb, nb, 0, 0, ictxt, max(1, ma), info)
    allocate(a(ma, na), z(ma, na), w(n))

    ! 2. Fill A: 2 on the diagonal, -1 beside it.
    do i = 1, ma
      gi = indxl2g(i, nb, myrow, 0, nprow)
      do j = 1, na
        gj = indxl2g(j, nb, mycol, 0, npcol)
        a(i, j) = 0
        if (gi == gj) a(i, j) = 2
        if (abs(gi - gj) == 1) a(i, j) = -1
      end do
    end do

    ! 3. Ask for the sizes of the workspaces, and solve; A is lost.
    call pdsyevd('V', 'L', n, a, 1, 1, desca, w, z, 1, 1, desca, needed, -1, sizes, 1, info)
    allocate(work(int(needed(1))), iwork(sizes(1)))
    call pdsyevd('V', 'L', n, a, 1, 1, desca, w, z, 1, 1, desca, work, size(work), iwork, size(iwork), info)
    if (info > 0) print '(a, i0)', 'an eigenvalue was not found: ', info

    ! 4. Look at the lowest eigenvalues, and at some elements of the first vector, whose sign is arbitrary.
    do i = 1, 4
      if (myrow == 0 .and. mycol == 0) print '(a, i1, a, f11.8)', 'w(', i, ') =', w(i)
    end do
    do i = 1, n, 66
      call pdelget('A', ' ', x, z, i, 1, desca)
      if (myrow == 0 .and. mycol == 0) print '(a, i3, a, f11.8)', 'abs(z(', i, ', 1)) =', abs(x)
    end do
    call blacs_gridexit(ictxt)
  end subroutine solve

end program pdsyevd_example
